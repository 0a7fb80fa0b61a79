"""Output for people: tables, the screen of ``gangwatch top``, and heat maps.

Start at ``rendering.py``, the tables of all commands. ``top_screen.py`` draws one screen.
``heat_map.py`` draws a job's steps in the terminal, and ``heat_map_page.py`` draws them as a page.
"""
