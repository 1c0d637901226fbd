"""The zoo's files, each writer beside its reader: tables, manifests, shards, the published folder and its card."""
