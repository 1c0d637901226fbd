"""What the READMEs say: their generated blocks, and every number in their prose checked against the rows."""
