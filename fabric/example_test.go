// SPDX-License-Identifier: Apache-2.0

package fabric_test

import (
	"context"
	"fmt"
	"log"

	"github.com/verbena-go/verbena/fabric"
)

// Print the links of the fabric that do not run at the speed of HDR.
func Example() {
	client, err := fabric.Open(fabric.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	topology, err := client.Discover(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	for a, b := range topology.Links() {
		if a.Rate() < 200 {
			fmt.Printf("%s port %d - %s port %d: %s\n", a.Node.Name(), a.Number, b.Node.Name(), b.Number, a.Rate())
		}
	}
	for _, p := range topology.Problems {
		fmt.Println(p)
	}
}

// Print and reset the counters of a port that are not 0.
func ExampleClient_Counters() {
	client, err := fabric.Open(fabric.Config{Device: "mlx5_0"})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	ctx := context.Background()
	const lid, port = 5, 1
	counters, err := client.Counters(ctx, lid, port)
	if err != nil {
		log.Fatal(err)
	}
	for _, c := range counters.All() {
		switch {
		case c.Saturated():
			fmt.Printf("%s: %d or more\n", c.Name, c.Value)
		case c.Value > 0:
			fmt.Printf("%s: %d\n", c.Name, c.Value)
		}
	}
	if err := client.ResetCounters(ctx, lid, port); err != nil {
		log.Fatal(err)
	}
}

// An address is a LID or a route, whose text begins with 0.
func ExampleParseAddress() {
	for _, text := range []string{"5", "0x5", "0", "0,1,12"} {
		address, err := fabric.ParseAddress(text)
		if err != nil {
			log.Fatal(err)
		}
		if lid, ok := address.LID(); ok {
			fmt.Println("LID", lid)
		} else if route, ok := address.Route(); ok {
			fmt.Println("route", route, "with", route.Hops(), "hops")
		}
	}
	// Output:
	// LID 5
	// LID 5
	// route 0 with 0 hops
	// route 0,1,12 with 2 hops
}
