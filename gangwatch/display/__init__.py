"""Output for people: tables, the screen of ``gangwatch top``, and heat maps.

Start at ``rendering.py``, the tables of all commands. ``top_screen.py`` draws one screen, ``heat_map.py`` a job's steps
in the terminal, and ``heat_map_page.py`` the same as a page.
"""
