"""Request and response bodies: hand-written Structs, decoding, encoding. JSON stays in this package."""
