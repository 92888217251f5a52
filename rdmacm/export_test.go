package rdmacm

// Waiting returns how many requests nobody has accepted yet.
func Waiting(ln *Listener) int { return len(ln.requests) }

// HasLeader reports whether somebody waits for completions.
func HasLeader(c *Conn) bool { return len(c.ops.lead) == 1 }

// Inject makes a connection believe that an event has come for it.
func Inject(c *Conn, ev *Event) { c.handle(ev) }

// Unhandled returns how many events wait for their handler.
func Unhandled(h *HandledID) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.events)
}

// Stopping returns how many calls of Shutdown wait.
func Stopping(h *HandledID) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.stopping
}

// Requests returns how many requests count against the backlog.
func Requests(h *HandledID) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.requests
}
