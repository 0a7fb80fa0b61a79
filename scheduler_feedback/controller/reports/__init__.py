"""What the controller measures of running jobs for the cycle: latencies, speeds, power, and delays of steps."""
