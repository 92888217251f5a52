package rdmacm

import "sync"

// queue calls functions one after the other, on a goroutine that exists only
// while there are any. The zero value is ready.
type queue struct {
	mu      sync.Mutex
	waiting []func()
	working bool
}

// add puts a function at the end of the queue. It does not wait.
func (q *queue) add(f func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, f)
	if !q.working {
		q.working = true
		go q.work()
	}
}

func (q *queue) work() {
	for {
		q.mu.Lock()
		if len(q.waiting) == 0 {
			q.waiting, q.working = nil, false
			q.mu.Unlock()
			return
		}
		f := q.waiting[0]
		q.waiting[0] = nil
		q.waiting = q.waiting[1:]
		q.mu.Unlock()
		f()
	}
}

// wait returns when all has been done that was added before.
func (q *queue) wait() {
	done := make(chan struct{})
	q.add(func() { close(done) })
	<-done
}
