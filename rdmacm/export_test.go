package rdmacm

// Waiting returns how many requests nobody has accepted yet.
func Waiting(ln *Listener) int { return len(ln.requests) }

// HasLeader reports whether somebody waits for completions.
func HasLeader(c *Conn) bool { return len(c.ops.lead) == 1 }

// Inject makes a connection believe that an event has come for it.
func Inject(c *Conn, ev *Event) { c.handle(ev) }

// EndpointRequests returns how many requests nobody has taken yet.
func EndpointRequests(ep *Endpoint) int {
	ep.inbox.mu.Lock()
	defer ep.inbox.mu.Unlock()
	return len(ep.inbox.requests)
}

// IBAddrRoundTrip gives an address to C and reads it back.
func IBAddrRoundTrip(a IBAddr) IBAddr { return ibAddr(a.sockaddr().ptr()) }

// EndpointCalls returns how many calls wait for their events.
func EndpointCalls(ep *Endpoint) int {
	ep.inbox.mu.Lock()
	defer ep.inbox.mu.Unlock()
	return len(ep.inbox.calls)
}
