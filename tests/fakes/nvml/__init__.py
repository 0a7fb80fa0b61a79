"""A fake of the driver's library at its real interface; the C is compiled by build.py and driven by control.py."""
