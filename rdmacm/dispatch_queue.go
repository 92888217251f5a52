package rdmacm

import "sync"

// queue calls functions in the order in which they come, on goroutines that
// exist only while there are any. The zero value is ready.
type queue struct {
	atOnce int // how many functions may run at once; 0 stands for 1

	mu      sync.Mutex // guards what follows
	waiting []func()
	workers int

	working sync.WaitGroup
}

// background is for calls of C that nobody waits for, such as those that end
// connections. The kernel may hold some of them up, so there are several at
// once; each holds a thread, so there are few.
var background = queue{atOnce: 4}

// partings give back the ids of connections that have ended. Destroying one may
// take the kernel long, so that nothing else stands behind it.
var partings = queue{atOnce: 4}

// add puts a function at the end of the queue. It does not wait.
func (q *queue) add(f func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, f)
	if q.workers < max(q.atOnce, 1) {
		q.workers++
		q.working.Go(q.work)
	}
}

func (q *queue) work() {
	for {
		q.mu.Lock()
		if len(q.waiting) == 0 {
			q.waiting = nil
			q.workers--
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

// wait returns when all has been done. Nobody may add anything meanwhile.
func (q *queue) wait() { q.working.Wait() }
