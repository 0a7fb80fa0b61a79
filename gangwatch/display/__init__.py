"""Output for people: tables, the screen of ``gangwatch top``, and heat maps.

Start at ``rendering.py``.
"""
