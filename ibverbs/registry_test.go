package ibverbs

// Registered returns how many C objects are known by their address.
func Registered() int {
	registry.Lock()
	defer registry.Unlock()
	return len(registry.objects)
}

// FD returns the descriptor that C reads the channel's events from.
func (ch *CompChannel) FD() int32 { return ch.raw.Fd }
