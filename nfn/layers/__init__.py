"""The paper's equivariant and invariant layers: a table of terms, computed as a few matrix products."""
