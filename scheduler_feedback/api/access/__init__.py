"""Access: who asks the controller, and what they may do.

Start with principal.py (roles and what each may do), then authentication.py (how a request becomes a principal:
tokens.py, oidc.py, token_review.py, sessions.py). middleware.py puts both before the whole app, and audit.py writes
down who did what. What each reader is shown is the table in core/disclosure.py.
"""
