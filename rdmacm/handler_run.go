package rdmacm

// dispatch takes an event of the id. It is called by a dispatcher, and so waits
// for nothing.
func (h *HandledID) dispatch(d *dispatcher, ev *Event) {
	if ev.Type != EventConnectRequest {
		h.add(ev)
		return
	}
	request := h.adopt(d, ev.ID)
	if request == nil {
		d.drop(ev.ID)
		return
	}
	request.add(ev)
}

// adopt makes a HandledID of a request, unless there are too many.
func (h *HandledID) adopt(d *dispatcher, id *ID) *HandledID {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cause != nil || h.requests >= h.backlog {
		return nil
	}
	h.requests++
	d.acquire() // while this id still uses it
	id.SetValue(h.id.Value())
	request := handleID(d, id, h.handler)
	request.listener = h
	return request
}

// add has an event handled.
func (h *HandledID) add(ev *Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, ev)
	h.work()
}

// work sees to it that somebody handles the events. The caller holds mu.
func (h *HandledID) work() {
	if !h.working {
		h.working = true
		go h.handleAll()
	}
}

func (h *HandledID) handleAll() {
	for {
		handler, ev := h.begin()
		if ev == nil {
			return
		}
		if ev.Type != EventConnectRequest {
			h.finish(handler(h, ev))
			continue
		}
		err := h.move(useDispatcher) // away from the listener's, where more requests come
		if err == nil {
			err = handler(h, ev)
		}
		h.listener.handled()
		h.finish(err)
	}
}

// begin returns what to run next, if there is an event and its handler may run.
func (h *HandledID) begin() (Handler, *Event) {
	h.closing.Lock()
	defer h.closing.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cause != nil {
		h.events = nil
	}
	if len(h.events) == 0 || h.stopping > 0 {
		h.working = false
		return nil, nil
	}
	ev := h.events[0]
	h.events[0] = nil
	h.events = h.events[1:]
	h.running = make(chan struct{})
	return h.handler, ev
}

// finish notes that the handler has returned, and closes the id after an error.
func (h *HandledID) finish(err error) {
	h.mu.Lock()
	if h.cause == nil {
		h.cause = err
	}
	close(h.running)
	h.running = nil
	h.mu.Unlock()
	if err != nil {
		h.end()
	}
}

// handled notes that a request's first event was handled.
func (h *HandledID) handled() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.requests--
}
