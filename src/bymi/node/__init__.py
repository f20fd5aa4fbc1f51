"""One real node: a process of one owner that trains with its neighbours over mutual TLS and trusts none of them."""
