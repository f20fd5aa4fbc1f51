"""Training over several processes under torchrun: process group, shard layout, message routing and sharded inboxes."""
