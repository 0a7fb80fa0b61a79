"""The commands of `gangwatch`, by theme. Each module imports what is heavy only when a command of it runs."""
