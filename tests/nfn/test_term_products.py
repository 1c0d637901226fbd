"""The GPU's way of multiplying many rows by a small matrix, against the plain product."""

import torch

from nfn.layers.term_products import CHUNK_ROWS, product_in_chunks


def test_product_in_chunks_equals_the_plain_product_and_its_gradients() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 3 * CHUNK_ROWS, 34), (2, 34, 10))
    factors = [torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True) for shape in shapes]
    plain, chunked = torch.bmm(*factors), product_in_chunks(*factors)
    torch.testing.assert_close(chunked, plain, rtol=1e-12, atol=1e-12)
    upstream = torch.randn(plain.shape, generator=generator, dtype=torch.float64)
    gradients = [torch.autograd.grad(product, factors, upstream) for product in (chunked, plain)]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-11, atol=1e-11)
