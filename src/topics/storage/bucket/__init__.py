"""The log in a bucket: what an object store must offer, the protocol of terms, and the copy that is kept there."""
