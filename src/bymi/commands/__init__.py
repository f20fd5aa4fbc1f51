"""The commands of `bymi`, one file each or two that belong together; bymi.cli makes an application of them."""
