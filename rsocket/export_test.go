package rsocket

// ForcePool makes connections without a pool use this one.
func ForcePool(p *Pool) { forcePool = p }
