"""Baselines that choose tokens after the encoder: `registry.PRUNERS`."""
