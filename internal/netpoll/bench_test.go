// SPDX-License-Identifier: Apache-2.0

//go:build unix

package netpoll_test

import (
	"context"
	"testing"
)

// BenchmarkWakeUp measures a round trip: two goroutines wake each other
// through two descriptors, so one wake-up is half of it.
func BenchmarkWakeUp(b *testing.B) {
	cancellable, cancel := context.WithCancel(context.Background())
	defer cancel()
	for _, c := range contexts(cancellable) {
		b.Run(c.name, func(b *testing.B) {
			pingR, pingW := pipe(b)
			pongR, pongW := pipe(b)
			ping, pong := open(b, pingR), open(b, pongR)
			token := []byte{1}
			echo := make(chan struct{})
			go func() {
				defer close(echo)
				for try := reader(pingR); ping.Wait(c.ctx, nil, try) == nil; {
					write(pongW, token...)
				}
			}()
			try := reader(pongR)
			b.ReportAllocs()
			for b.Loop() {
				write(pingW, token...)
				if err := pong.Wait(c.ctx, nil, try); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(2*b.N), "ns/wakeup")
			_ = ping.Close()
			<-echo
		})
	}
}

// BenchmarkEventAlreadyThere measures what Wait adds to a try that is done.
func BenchmarkEventAlreadyThere(b *testing.B) {
	cancellable, cancel := context.WithCancel(context.Background())
	defer cancel()
	for _, c := range contexts(cancellable) {
		b.Run(c.name, func(b *testing.B) {
			r, _ := pipe(b)
			f := open(b, r)
			try := func() (bool, error) { return true, nil }
			b.ReportAllocs()
			for b.Loop() {
				if err := f.Wait(c.ctx, nil, try); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

type namedContext struct {
	name string
	ctx  context.Context
}

func contexts(cancellable context.Context) []namedContext {
	return []namedContext{{"background", context.Background()}, {"cancellable", cancellable}}
}
