// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/cmd/verbena/internal/perf/mesh"
	"github.com/verbena-go/verbena/cmd/verbena/internal/perf/plot"
)

// runMesh measures every pair of the hosts of --mesh.
func (o *options) runMesh(ctx context.Context, out program.Output) error {
	config, err := o.meshConfig()
	if err != nil {
		return err
	}
	if config.Token, err = mesh.ReadToken(); err != nil {
		return err
	}
	var shown progress
	if program.IsTerminal(out.Stderr) {
		shown.to = out.Stderr
		config.Progress = func(pairs, of, round int) {
			shown.line(fmt.Sprintf("round %d: %d of %d pairs", round, pairs, of))
		}
	}
	result, err := mesh.Run(ctx, config)
	shown.clear()
	if err != nil {
		return err
	}
	if o.json {
		err = out.JSON(result)
	} else {
		result.Write(out.Stdout)
	}
	if err == nil && o.plot != "" {
		err = plot.DrawHeat(o.plot, result)
	}
	if err == nil && result.Failed() {
		err = errors.New("not every pair was measured")
	}
	return err
}

// meshConfig returns what the flags say about a mesh.
func (o *options) meshConfig() (c mesh.Config, err error) {
	for name, given := range map[string]bool{
		"a test": o.name != "", "-a": o.all, "-b": o.both, "-R": o.where.RDMACM, "--conn": o.where.Conn, "-d": o.where.Device != "",
		"-i": o.where.Port != 0, "-c": !strings.EqualFold(o.transport, "RC"), "--compare": len(o.compare) > 0,
	} {
		if given {
			return c, program.Misuse("--mesh measures send_lat and write_bw of all agents' devices, without %s", name)
		}
	}
	c = mesh.Config{Hosts: strings.Split(o.mesh, ","), Port: o.where.TCPPort, Wait: o.wait, AtOnce: o.atOnce}
	both := *o
	if o.duration == 0 && o.iterations == unset {
		both.duration = 1
	}
	latency, bandwidth := both, both
	latency.name, latency.qps, latency.list, latency.size, latency.depth, latency.moderation = "send_lat", 1, 1, unset, unset, unset
	bandwidth.name = "write_bw"
	for _, test := range []struct {
		of   *options
		spec *mesh.Spec
	}{{&latency, &c.Latency}, {&bandwidth, &c.Bandwidth}} {
		t, err := test.of.test()
		if err != nil {
			return c, err
		}
		*test.spec = mesh.NewSpec(t)
		if err := test.spec.Check(); err != nil {
			return c, program.Misuse("%v", err)
		}
	}
	return c, nil
}

// defaultWait is how long --mesh waits for agents without -W.
const defaultWait = 30 * time.Second
