"""Programs of the jobs on a test day. Each records its own start and end, independent of gangwatch."""
