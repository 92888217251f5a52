package rdmacm_test

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

// countdown is a context that ends when somebody looks at it for the nth time.
// Each step that waits looks at least once. It notes the functions of the
// package that look.
type countdown struct {
	context.Context
	cancel context.CancelFunc

	mu     sync.Mutex
	left   int
	stages []string
}

func newCountdown(t *testing.T, n int) *countdown {
	c := &countdown{left: n}
	c.Context, c.cancel = context.WithCancel(bounded(t))
	t.Cleanup(c.cancel)
	return c
}

func (c *countdown) Done() <-chan struct{} { c.tick(looker()); return c.Context.Done() }
func (c *countdown) Err() error            { c.tick(looker()); return c.Context.Err() }

// tick counts one look.
func (c *countdown) tick(stage string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left--; c.left == 0 {
		c.cancel()
	}
	if c.left >= 0 && !slices.Contains(c.stages, stage) {
		c.stages = append(c.stages, stage)
	}
}

// last returns the stage at which the context has ended, and whether it has.
func (c *countdown) last() (stage string, ended bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Context.Err() == nil || len(c.stages) == 0 {
		return "", false
	}
	return c.stages[len(c.stages)-1], true
}

func (c *countdown) ended() bool {
	_, ended := c.last()
	return ended
}

// looker returns the function of the package that looks at the context.
func looker() string {
	const module = "github.com/verbena-go/verbena/rdmacm."
	var pcs [32]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])])
	for {
		frame, more := frames.Next()
		if name, ok := strings.CutPrefix(frame.Function, module); ok && name != "contextError" {
			return name
		}
		if !more {
			return "somebody else"
		}
	}
}
