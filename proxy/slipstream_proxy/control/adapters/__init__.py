"""Adapters: their versions and states, and their way in and out of the engines.

``registry`` holds what there is, ``journal`` keeps changes, ``lifecycle`` decides on states, ``registrar`` takes in new
versions, ``swapper`` loads and unloads, ``gatekeeper`` runs the gate, ``fleet`` follows other proxies on the same
store.
"""
