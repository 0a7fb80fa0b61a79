"""Commands for certificates and tokens.

Start at ``certificates.py`` for nodes and at ``token.py`` for users.
"""
