// SPDX-License-Identifier: Apache-2.0

package stat

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/ibverbs/stat"
)

// reading is a set of counters with the time at which they were read.
type reading struct {
	at      time.Time
	devices []device
}

// watch prints rates until ctx ends, or as often as the flags say.
func (o *options) watch(ctx context.Context, out program.Output, s source) error {
	ticker := time.NewTicker(time.Duration(o.seconds) * time.Second)
	defer ticker.Stop()
	var last reading
	for left := o.count; ; {
		devices, err := o.devices(ctx, s)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		now := reading{time.Now(), devices}
		if last.devices != nil {
			if err := o.printRates(out.Stdout, last, now); err != nil {
				return err
			}
			if left--; left == 0 {
				return nil
			}
		}
		last = now
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// place identifies a counter across readings.
type place struct {
	device      string
	peer        string // of an engine, otherwise empty
	pid, port   int    // pid: process of a device in user space or of an engine, otherwise 0; port: 0 for the device itself
	group, name string
}

// rated is a counter with its growth per second.
type rated struct {
	stat.Counter
	PerSecond *float64 `json:"per_second,omitempty"` // growth per second; nil if the counter is new or has restarted
}

// ratedPort is a port with rates; ratedDevice is a device.
type (
	ratedPort struct {
		stat.Port
		Counters []rated `json:"counters"`
	}
	ratedDevice struct {
		device
		Ports    []ratedPort `json:"ports"`
		Counters []rated     `json:"counters"`
	}
	ratedReport struct {
		Time    time.Time     `json:"time"`
		Devices []ratedDevice `json:"devices"`
	}
)

// values returns the values of all counters.
func (r reading) values() map[place]uint64 {
	all := map[place]uint64{}
	for _, d := range r.devices {
		for _, c := range d.Counters {
			all[d.place(0, c)] = c.Value
		}
		for _, p := range d.Ports {
			for _, c := range p.Counters {
				all[d.place(p.Port, c)] = c.Value
			}
		}
	}
	return all
}

func (d device) place(port int, c stat.Counter) place {
	p := place{device: d.Name, peer: d.Peer, port: port, group: string(c.Group), name: c.Name}
	if d.Process != nil {
		p.pid = d.Process.PID
	}
	return p
}

// rates returns the counters with their growth since the reading before.
func (r reading) rates(before reading) ratedReport {
	values, seconds := before.values(), r.at.Sub(before.at).Seconds()
	rates := func(d device, port int, counters []stat.Counter) []rated {
		all := []rated{}
		for _, c := range counters {
			v := rated{Counter: c}
			if was, is := values[d.place(port, c)]; is && was <= c.Value && seconds > 0 {
				perSecond := float64(c.Value-was) / seconds
				v.PerSecond = &perSecond
			}
			all = append(all, v)
		}
		return all
	}
	report := ratedReport{Time: r.at, Devices: []ratedDevice{}}
	for _, d := range r.devices {
		rd := ratedDevice{device: d, Ports: []ratedPort{}, Counters: rates(d, 0, d.Counters)}
		for _, p := range d.Ports {
			rd.Ports = append(rd.Ports, ratedPort{p, rates(d, p.Port, p.Counters)})
		}
		report.Devices = append(report.Devices, rd)
	}
	return report
}

// printRates prints the counters that have changed, or with -j all of them, and
// the processes that do not answer.
func (o *options) printRates(w io.Writer, before, now reading) error {
	report := now.rates(before)
	if o.asJSON {
		return program.Output{Stdout: w}.JSONLine(report)
	}
	fmt.Fprintln(w, report.Time.Format(time.RFC3339))
	table, shown := newTable(w), 0
	for _, d := range report.Devices {
		if d.Error != "" {
			fmt.Fprintf(w, "  %s: %s\n", d.title(0), program.Printable(d.Error))
			shown++
		}
		shown += o.printChanged(table, d.title(0), d.Counters)
		for _, p := range d.Ports {
			shown += o.printChanged(table, d.title(p.Port.Port), p.Counters)
		}
	}
	if shown == 0 {
		fmt.Fprintln(w, "  no change")
	}
	return table.Flush()
}

// printChanged prints the counters of a device or port that have changed, or
// with -v all of them, and returns how many it has printed. of names the device
// or port.
func (o *options) printChanged(w io.Writer, of string, counters []rated) (shown int) {
	for _, c := range counters {
		switch unit := string(cmp.Or(c.Unit, "-")); {
		case c.PerSecond == nil:
			fmt.Fprintf(w, "  %s\t%s\t%s\tnew\t%s\n", of, c.Group, c.Name, unit)
		case *c.PerSecond == 0 && !o.all:
			continue
		default:
			fmt.Fprintf(w, "  %s\t%s\t%s\t%.1f\t%s/s\n", of, c.Group, c.Name, *c.PerSecond, unit)
		}
		shown++
	}
	return shown
}
