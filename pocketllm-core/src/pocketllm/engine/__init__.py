"""What engines are made of: the call they accept, the outbox they post to, and a ready-made loop over iterators."""
