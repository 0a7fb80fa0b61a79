"""The programs of the harness's jobs. Each writes its own evidence, independent of gangwatch."""
