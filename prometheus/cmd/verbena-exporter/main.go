// SPDX-License-Identifier: Apache-2.0

// Verbena-exporter serves a page for Prometheus with the counters of this
// machine's RDMA devices, and with the numbers of objects that programs have on
// them.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/pflag"

	"github.com/verbena-go/verbena/ibverbs/stat"
	"github.com/verbena-go/verbena/prometheus/collector"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// The exit statuses besides 0.
const (
	exitFailed  = 1
	exitMisused = 2
)

// options are the flags.
type options struct {
	listen, sysfs            string
	resources, soft, version bool
}

// flags returns the flags, which set the options.
func (o *options) flags() *pflag.FlagSet {
	f := pflag.NewFlagSet(name, pflag.ContinueOnError)
	f.SortFlags = false
	f.Usage = func() {} // run prints the usage
	f.StringVarP(&o.listen, "listen", "l", "127.0.0.1:7479", "`address` to listen on; the page has no password")
	f.StringVarP(&o.sysfs, "sysfs", "s", string(stat.Default), "`folder` where sysfs is mounted")
	f.BoolVarP(&o.resources, "resources", "r", true, "count the objects of programs")
	f.BoolVarP(&o.soft, "soft", "u", true, "show the devices in user space of this user's programs")
	f.BoolVar(&o.version, "version", false, "print the version")
	return f
}

const name = "verbena-exporter"

// help is the text that -h prints. The list of flags takes the place of %s.
const help = `verbena-exporter [-l address]

%s
Serves a page for Prometheus at /metrics, with what this machine's RDMA devices
have counted, and how many objects programs have on them.

Example: verbena-exporter -l :7479
`

// version returns a text about what the program was built from.
func version() string {
	built := "(devel)"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		built = info.Main.Version
	}
	return fmt.Sprintf("%s %s\n%s %s/%s\n", name, built, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// run runs the program until the first SIGINT or SIGTERM, and returns its exit
// status.
func run(args []string, stdout, stderr io.Writer) int {
	o := &options{}
	flags := o.flags()
	err := flags.Parse(args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		_, err = fmt.Fprintf(stdout, help, flags.FlagUsages())
	case err != nil:
		return misused(stderr, err.Error())
	case flags.NArg() > 0:
		return misused(stderr, fmt.Sprintf("unexpected argument %q", flags.Arg(0)))
	case o.listen == "": // net.Listen would choose a port, and listen on all addresses
		return misused(stderr, "-l is empty")
	case o.version:
		_, err = io.WriteString(stdout, version())
	default:
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		context.AfterFunc(ctx, stop) // so that the second signal ends the process
		err = o.export(ctx, stderr)
	}
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", name, err)
		return exitFailed
	}
	return 0
}

func misused(stderr io.Writer, text string) int {
	fmt.Fprintf(stderr, "%s: %s; -h lists the flags\n", name, text)
	return exitMisused
}

// export serves the page until ctx ends.
func (o *options) export(ctx context.Context, stderr io.Writer) error {
	return serve(ctx, o.listen, collector.New(collector.Config{
		Sysfs: stat.Sysfs(o.sysfs), NoResources: !o.resources, NoSoft: !o.soft,
		OnError: func(err error) { fmt.Fprintf(stderr, "%s: %v\n", name, err) },
	}), stderr)
}

// patience is the maximum time for a client to send its request, and, after an
// interrupt, for a page to be finished.
const patience = 10 * time.Second

func serve(ctx context.Context, address string, c prometheus.Collector, stderr io.Writer) error {
	registry := prometheus.NewRegistry()
	if err := registry.Register(c); err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		// If two counters of a driver get the same metric name, the
		// page lacks one of them, instead of failing as a whole.
		ErrorHandling: promhttp.ContinueOnError, ErrorLog: log.New(stderr, name+": ", 0),
	}))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, "<a href=\"/metrics\">metrics of RDMA devices</a>\n")
	})
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	fmt.Fprintf(stderr, "%s: listening on %v\n", name, ln.Addr())
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
