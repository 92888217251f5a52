// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"regexp"
	"sort"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/verbena-go/verbena/examples/valkey/valkeyrdma"
)

// A load is something that clients do again and again.
type load struct {
	name    string
	clients int
	ops     int // commands in one call of do
	do      func(ctx context.Context, c *redis.Client) error
	args    []string // the same for valkey-benchmark; nil: it is not measured
}

func loads() []load {
	get := func(ctx context.Context, c *redis.Client) error { return c.Get(ctx, "small").Err() }
	return []load{
		{"SET 16 B", 1, 1, func(ctx context.Context, c *redis.Client) error {
			return c.Set(ctx, "small", "0123456789abcdef", 0).Err()
		}, []string{"-t", "set", "-c", "1", "-d", "16"}},
		{"GET 16 B", 1, 1, get, []string{"-t", "get", "-c", "1", "-d", "16"}},
		{"GET 16 B, 50 clients", 50, 1, get, []string{"-t", "get", "-c", "50", "-d", "16"}},
		{"SET 16 B, 100 in a pipeline", 1, 100, func(ctx context.Context, c *redis.Client) error {
			_, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
				for range 100 {
					p.Set(ctx, "small", "0123456789abcdef", 0)
				}
				return nil
			})
			return err
		}, []string{"-t", "set", "-c", "1", "-d", "16", "-P", "100"}},
		{"GET 64 KiB", 1, 1, func(ctx context.Context, c *redis.Client) error { return c.Get(ctx, "64k").Err() }, nil},
		{"SET 1 MiB", 1, 1, func(ctx context.Context, c *redis.Client) error { return c.Set(ctx, "1m", megabyte, 0).Err() }, nil},
		{"GET 1 MiB", 1, 1, func(ctx context.Context, c *redis.Client) error { return c.Get(ctx, "1m").Err() }, nil},
	}
}

var megabyte = bytes.Repeat([]byte("x"), 1<<20)

// period is how long one measurement takes.
const period = 300 * time.Millisecond

// compare measures each load over TCP and over RDMA, in turns, and prints the
// medians of the commands in a second, and the ratio of the two with its range.
func compare(ctx context.Context, address string, turns int, program string) error {
	tcp := redis.NewClient(&redis.Options{Addr: address, PoolSize: 50})
	defer func() { _ = tcp.Close() }()
	rdma := redis.NewClient(&redis.Options{Addr: address, PoolSize: 50, Dialer: valkeyrdma.Dial, DialTimeout: time.Minute})
	defer func() { _ = rdma.Close() }()
	if err := errors.Join(tcp.Set(ctx, "64k", megabyte[:64<<10], 0).Err(), rdma.Ping(ctx).Err()); err != nil {
		return err
	}
	fmt.Printf("%-28s %12s %12s %7s %-14s %s\n", "commands in a second", "TCP", "RDMA", "ratio", "(range)", "valkey-benchmark, TCP")
	for _, l := range loads() {
		var overTCP, overRDMA, ratios, others []float64
		for range turns {
			a, err := l.measure(ctx, tcp)
			if err != nil {
				return fmt.Errorf("%s over TCP: %w", l.name, err)
			}
			b, err := l.measure(ctx, rdma)
			if err != nil {
				return fmt.Errorf("%s over RDMA: %w", l.name, err)
			}
			overTCP, overRDMA, ratios = append(overTCP, a), append(overRDMA, b), append(ratios, b/a)
			if program != "" && l.args != nil {
				c, err := benchmark(ctx, program, address, l.args)
				if err != nil {
					return err
				}
				others = append(others, c)
			}
		}
		ratio := median(ratios)
		between := fmt.Sprintf("(%.2f-%.2f)", ratios[0], ratios[len(ratios)-1])
		fmt.Printf("%-28s %12.0f %12.0f %7.2f %-14s", l.name, median(overTCP), median(overRDMA), ratio, between)
		if others != nil {
			fmt.Printf(" %12.0f", median(others))
		}
		fmt.Println()
	}
	return nil
}

// measure returns the commands in a second.
func (l load) measure(ctx context.Context, c *redis.Client) (float64, error) {
	if _, err := l.repeat(ctx, c, 0); err != nil { // so that all connections are there
		return 0, err
	}
	start := time.Now()
	n, err := l.repeat(ctx, c, period)
	return float64(n) / time.Since(start).Seconds(), err
}

// repeat does the load with all clients for some time, at least once, and
// returns the number of commands.
func (l load) repeat(ctx context.Context, c *redis.Client, d time.Duration) (int64, error) {
	var ends sync.WaitGroup
	var commands atomic.Int64
	errs := make([]error, l.clients)
	start := time.Now()
	for i := range errs {
		ends.Go(func() {
			for once := true; errs[i] == nil && (once || time.Since(start) < d); once = false {
				errs[i] = l.do(ctx, c)
				commands.Add(int64(l.ops))
			}
		})
	}
	ends.Wait()
	return commands.Load(), errors.Join(errs...)
}

// benchmark runs valkey-benchmark and returns the commands in a second.
func benchmark(ctx context.Context, program, address string, args []string) (float64, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return 0, err
	}
	out, err := exec.CommandContext(ctx, program, append([]string{"-h", host, "-p", port, "-n", "20000", "--csv"}, args...)...).Output()
	if err != nil {
		return 0, fmt.Errorf("%s: %w", program, err)
	}
	found := regexp.MustCompile(`(?m)^"(?:SET|GET)","([0-9.]+)"`).FindSubmatch(out)
	if found == nil {
		return 0, fmt.Errorf("%s prints %q", program, out)
	}
	return strconv.ParseFloat(string(found[1]), 64)
}

// median sorts the values and returns the one in the middle.
func median(values []float64) float64 {
	sort.Float64s(values)
	return values[len(values)/2]
}
