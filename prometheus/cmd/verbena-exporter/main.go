// SPDX-License-Identifier: Apache-2.0

// Verbena-exporter serves a page for Prometheus with what this machine's RDMA
// devices have counted, and how many objects programs have on them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/verbena-go/verbena/ibverbs/stat"
	"github.com/verbena-go/verbena/prometheus/collector"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stderr))
}

// run serves the page until ctx ends, and returns the exit status.
func run(ctx context.Context, args []string, stderr io.Writer) int {
	flags := flag.NewFlagSet("verbena-exporter", flag.ContinueOnError)
	flags.SetOutput(stderr)
	listen := flags.String("listen", "127.0.0.1:7479", "`address` to listen on; the page has no password")
	sysfs := flags.String("sysfs", string(stat.Default), "`folder` where sysfs is mounted")
	resources := flags.Bool("resources", true, "count the objects of programs")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err == nil && flags.NArg() > 0:
		fmt.Fprintf(stderr, "verbena-exporter: unexpected argument %q\n", flags.Arg(0))
		return 1
	case err != nil:
		return 1
	}
	c := collector.New(collector.Config{
		Sysfs: stat.Sysfs(*sysfs), NoResources: !*resources, OnError: func(err error) { fmt.Fprintf(stderr, "verbena-exporter: %v\n", err) },
	})
	if err := serve(ctx, *listen, c, stderr); err != nil {
		fmt.Fprintf(stderr, "verbena-exporter: %v\n", err)
		return 1
	}
	return 0
}

// patience is how long a client may take to ask, and a page to be finished after
// an interrupt.
const patience = 10 * time.Second

func serve(ctx context.Context, address string, c prometheus.Collector, stderr io.Writer) error {
	registry := prometheus.NewRegistry()
	if err := registry.Register(c); err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		// Two counters of a driver whose names look alike to Prometheus cost one of them, not the page.
		ErrorHandling: promhttp.ContinueOnError, ErrorLog: log.New(stderr, "verbena-exporter: ", 0),
	}))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, "<a href=\"/metrics\">metrics of RDMA devices</a>\n")
	})
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	fmt.Fprintf(stderr, "verbena-exporter: listening on %v\n", ln.Addr())
	server := &http.Server{Handler: mux, ReadHeaderTimeout: patience}
	ended := make(chan error, 1)
	defer context.AfterFunc(ctx, func() {
		limit, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		ended <- server.Shutdown(limit)
	})()
	if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-ended
}
