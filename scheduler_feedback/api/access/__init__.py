"""Access: authentication of requests, and roles.

Start with principal.py (roles and their rights), then authentication.py, which turns a request into a principal with
tokens.py, oidc.py, token_review.py and sessions.py. middleware.py applies both to the whole application, and audit.py
records changes. core/disclosure.py is the table of the fields that each reader may see.
"""
