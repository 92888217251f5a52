// SPDX-License-Identifier: Apache-2.0

// Picture draws the panels of the Grafana dashboard, without Grafana and
// without Prometheus: it takes the samples from the collector itself, once a
// second, and evaluates the dashboard's expressions. It shows this machine's
// devices, and the devices in user space of this user's programs.
//
//	picture -for 60s -o dashboard.svg exporter/dashboard.json
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/verbena-go/verbena/examples/kubernetes/internal/dashboard"
	"github.com/verbena-go/verbena/examples/kubernetes/internal/scrape"
	"github.com/verbena-go/verbena/prometheus/collector"
)

// interval is the time between two scrapes, and window the time over which
// rates are taken.
const (
	interval = time.Second
	window   = 4 * interval
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("picture: ")
	duration := flag.Duration("for", time.Minute, "how long to take samples")
	node := flag.String("node", "node-1", "`name` of the node in the picture")
	output := flag.String("o", "dashboard.svg", "`file` to write")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: picture [flags] dashboard.json")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, flag.Arg(0), *output, *node, *duration); err != nil {
		log.Fatal(err)
	}
}

// run takes samples for a while, or until ctx ends, and draws them.
func run(ctx context.Context, file, output, node string, duration time.Duration) error {
	d, err := dashboard.Load(file)
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	if err := registry.Register(collector.New(collector.Config{OnError: func(err error) { log.Print(err) }})); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, duration)
	defer cancel()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	var history scrape.History
	for ctx.Err() == nil {
		page, err := scrape.Take(registry, node, time.Now())
		if err != nil {
			return err
		}
		history = append(history, page)
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	svg, err := draw(d, history)
	if err != nil {
		return err
	}
	return os.WriteFile(output, svg, 0o666)
}
