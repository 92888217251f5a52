package cmtime

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// step is what every connection does before any does the next.
type step int

const (
	createID step = iota
	bindAddr
	resolveAddr
	resolveRoute
	createQP
	connect
	disconnect
	destroy
	steps
)

func (s step) String() string {
	return [...]string{
		"create id", "bind addr", "resolve addr", "resolve route", "create qp", "connect", "disconnect", "destroy",
	}[s]
}

// span is from when to when something took.
type span struct{ start, end time.Time }

func (s *span) took() time.Duration { return s.end.Sub(s.start) }

// print writes a line for a step that all connections have taken: milliseconds
// for all together, then microseconds.
func print(w io.Writer, s step, all time.Duration, each []time.Duration) {
	slices.Sort(each)
	var sum time.Duration
	for _, d := range each {
		sum += d
	}
	us := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	percentile := func(p int) float64 { return us(each[(len(each)-1)*p/100]) }
	n := time.Duration(len(each))
	fmt.Fprintf(w, "%-13s: %11.2f%11.2f%11.2f%11.2f%11.2f%11.2f%11.2f%11.2f\n",
		s, us(all)/1000, us(all)/float64(n), us(each[0]), us(sum)/float64(n),
		percentile(50), percentile(90), percentile(99), us(each[n-1]))
}

func printHead(w io.Writer) {
	fmt.Fprintf(w, "%-13s  %11s%11s%11s%11s%11s%11s%11s%11s\n",
		"step", "total ms", "us / conn", "min us", "avg us", "50% us", "90% us", "99% us", "max us")
}
