// SPDX-License-Identifier: Apache-2.0

package ping

import (
	"math"
	"time"
)

// answer is the output for one message.
type answer struct {
	Time  time.Time `json:"time"`
	Seq   int       `json:"seq"`
	Size  int       `json:"size"`
	RTT   *float64  `json:"rtt_us,omitempty"` // round-trip time; nil if the message was lost
	Error string    `json:"error,omitempty"`
}

// summary is the output at the end. Times are in microseconds.
type summary struct {
	Host         string  `json:"host"`
	Port         int     `json:"port"`
	Size         int     `json:"size"`
	Sent         int     `json:"sent"`
	Answered     int     `json:"answered"`
	Lost         float64 `json:"lost_percent"`
	Milliseconds float64 `json:"duration_ms"`
	Min          float64 `json:"min_us"`
	Mean         float64 `json:"avg_us"`
	Max          float64 `json:"max_us"`
	Deviation    float64 `json:"stdev_us"`

	sum, squares float64
}

// add counts a message. rtt is its round-trip time, or nil if it was lost.
func (s *summary) add(rtt *float64) {
	s.Sent++
	if rtt != nil {
		t := *rtt
		if s.Answered == 0 || t < s.Min {
			s.Min = t
		}
		s.Max = max(s.Max, t)
		s.Answered++
		s.sum, s.squares = s.sum+t, s.squares+t*t
		mean := s.sum / float64(s.Answered)
		s.Mean, s.Deviation = thousandths(mean), thousandths(math.Sqrt(max(0, s.squares/float64(s.Answered)-mean*mean)))
	}
	s.Lost = thousandths(100 * float64(s.Sent-s.Answered) / float64(s.Sent))
}

// thousandths rounds to three decimals: microseconds to nanoseconds.
func thousandths(us float64) float64 { return math.Round(us*1000) / 1000 }

// report prints the result of a message.
func (c *client) report(seq int, took time.Duration, err error) {
	a := answer{Time: time.Now(), Seq: seq, Size: c.size}
	if err != nil {
		a.Error = err.Error()
	} else {
		us := float64(took) / float64(time.Microsecond) // to the nanosecond
		a.RTT = &us
	}
	c.summary.add(a.RTT)
	switch {
	case c.quiet:
	case c.asJSON:
		c.failed = c.out.JSONLine(a)
	case err != nil:
		c.out.Printf("seq=%d lost: %v\n", seq, err)
	default:
		c.out.Printf("%d bytes from %s: seq=%d time=%.3f ms\n", c.size, c.end.conn.RemoteAddr().Addr(), seq, *a.RTT/1000)
	}
}

// finish prints the summary.
func (c *client) finish() error {
	s := &c.summary
	if c.asJSON {
		return c.out.JSONLine(map[string]*summary{"summary": s})
	}
	c.out.Printf("\n--- %s ping statistics ---\n%d messages sent, %d answered, %.3g%% lost, time %.0f ms\n",
		s.Host, s.Sent, s.Answered, s.Lost, s.Milliseconds)
	if s.Answered > 0 {
		c.out.Printf("rtt min/avg/max/stdev = %.3f/%.3f/%.3f/%.3f ms\n", s.Min/1000, s.Mean/1000, s.Max/1000, s.Deviation/1000)
	}
	return nil
}
