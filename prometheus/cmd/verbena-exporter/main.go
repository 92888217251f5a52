// SPDX-License-Identifier: Apache-2.0

// Verbena-exporter serves a page for Prometheus with what this machine's RDMA
// devices have counted, and how many objects programs have on them.
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
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/verbena-go/verbena/ibverbs/stat"
	"github.com/verbena-go/verbena/internal/cmd/program"
	"github.com/verbena-go/verbena/prometheus/collector"
)

func main() { os.Exit(exporter().Main(os.Args[1:], os.Stdout, os.Stderr)) }

// exporter returns the program.
func exporter() *program.Program {
	listen, sysfs := "127.0.0.1:7479", string(stat.Default)
	var resources, soft, version bool
	return &program.Program{
		Name: "verbena-exporter", Usage: "verbena-exporter [-l address]", Misused: program.ExitMisused,
		Flags: func(f *program.Flags) {
			f.StringVarP(&listen, "listen", "l", listen, "`address` to listen on; the page has no password")
			f.StringVarP(&sysfs, "sysfs", "s", sysfs, "`folder` where sysfs is mounted")
			f.BoolVarP(&resources, "resources", "r", true, "count the objects of programs")
			f.BoolVarP(&soft, "soft", "u", true, "show the devices in user space of this user's programs")
			f.BoolVar(&version, "version", false, "print the version")
		},
		Text: `
Serves a page for Prometheus at /metrics, with what this machine's RDMA devices
have counted, and how many objects programs have on them.

Example: verbena-exporter -l :7479`,
		Run: func(ctx context.Context, out program.Output) error {
			if version {
				out.Printf("%s\n", program.Version("verbena-exporter"))
				return nil
			}
			if listen == "" { // for which net.Listen takes any port, on all addresses
				return program.Misuse("-l is empty")
			}
			return serve(ctx, listen, collector.New(collector.Config{
				Sysfs: stat.Sysfs(sysfs), NoResources: !resources, NoSoft: !soft,
				OnError: func(err error) { fmt.Fprintf(out.Stderr, "verbena-exporter: %v\n", err) },
			}), out.Stderr)
		},
	}
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
