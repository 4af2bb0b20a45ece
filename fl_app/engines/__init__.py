"""Where a run happens: in the calling process, in Flower's simulation runtime, on devices."""
