// SPDX-License-Identifier: Apache-2.0

package collector_test

import (
	"log"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/verbena-go/verbena/prometheus/collector"
)

// Serve the counters of this machine's RDMA devices beside the program's own
// metrics.
func ExampleCollector() {
	prometheus.MustRegister(collector.New(collector.Config{OnError: func(err error) { log.Print(err) }}))
	http.Handle("/metrics", promhttp.Handler())
	log.Fatal(http.ListenAndServe("127.0.0.1:9000", nil))
}
