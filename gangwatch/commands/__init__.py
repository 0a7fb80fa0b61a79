"""The commands of `gangwatch`, grouped by theme. Each module imports heavy dependencies only when its command runs."""
