"""The programs that the harness's jobs run. Each writes its own evidence, apart from gangwatch."""
