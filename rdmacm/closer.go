package rdmacm

import "sync"

// closer runs a Close until it succeeds, once at a time.
type closer struct {
	mu   sync.Mutex
	done bool
}

func (c *closer) do(f func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done {
		return nil
	}
	if err := f(); err != nil {
		return err
	}
	c.done = true
	return nil
}
