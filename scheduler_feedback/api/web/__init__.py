"""The live page: what the controller knows, as HTML that keeps itself up to date.

Each page is rendered here whole, so that it reads without a script; a stream of server-sent events then brings every
part of it that has changed (pages.py). views.py: the state as bounded documents, which `gangwatch top` draws too.
Whatever has to change something asks the API for it, with the token.
"""
