// SPDX-License-Identifier: Apache-2.0

package main

var memory = drawing{
	name:  "memory",
	title: "Whom memory belongs to, in time",
	description: "Memory is registered from Alloc or Register to Close. A send gives it to the device until the call returns. " +
		"If the context of a call ends first, the memory stays the device's until Transfer.Wait returns. A receive gives it to the device from PostRecv until Receive.Wait returns the message. " +
		"Memory with remote access can be used by peers at any time until the region is closed.",
	width: 800, height: 500,
	draw: func(c *canvas) {
		const begin, end = 150, 680
		c.text("small", "middle", begin, 36, "Conn.Alloc")
		c.text("small", "middle", end, 36, "MR.Close, Conn.Close")
		c.box("plain", rect{begin, 52, end - begin, 32}, "registered: pages in place, keys valid")
		c.path("rule", [2]int{begin, 42}, [2]int{begin, 424})
		c.path("rule", [2]int{end, 42}, [2]int{end, 424})
		c.text("small", "start", 20, 72, "the region")

		// span is a time in which the memory is of one side, up to a pixel.
		type span struct {
			until int
			class string
			text  string
		}
		for i, row := range []struct {
			name   [2]string
			spans  []span
			events map[int]string // what happens at a time
		}{
			{
				[2]string{"Send, Write,", "Read"},
				[]span{{290, "go", "program"}, {450, "device", "device"}, {end, "go", "program"}},
				map[int]string{290: "the call", 450: "returns nil, or an error"},
			},
			{
				[2]string{"the same, when", "the context ends"},
				[]span{{290, "go", "program"}, {560, "device", "device"}, {end, "go", "program"}},
				map[int]string{290: "the call", 410: "*PendingError", 560: "Transfer.Wait returns"},
			},
			{
				[2]string{"PostRecv"},
				[]span{{230, "go", "program"}, {520, "device", "device"}, {end, "go", "program"}},
				map[int]string{230: "PostRecv", 370: "a message comes", 520: "Receive.Wait returns it"},
			},
			{
				[2]string{"remote access", "for the peer"},
				[]span{{end, "device", "the peer, at any time, and the program"}},
				map[int]string{begin: "the peer has the key"},
			},
		} {
			y := 120 + 80*i
			for j, name := range row.name {
				if name != "" {
					c.text("small", "start", 20, y+16+16*j, name)
				}
			}
			from := begin
			for _, s := range row.spans {
				c.box(s.class, rect{from, y, s.until - from, 32}, s.text)
				from = s.until
			}
			for x := begin; x <= end; x++ { // in order, which a map has not
				if text, ok := row.events[x]; ok {
					c.line([2]int{x, y + 32}, [2]int{x, y + 40})
					c.text("small light", "middle", max(x, begin+70), y+54, text)
				}
			}
		}
		c.text("small", "start", end+12, 136, "Go's heap")
		c.text("small", "start", end+12, 152, "again: freed")
		c.text("small", "start", end+12, 168, "after the last")
		c.text("small", "start", end+12, 184, "reference")
		c.arrow([2]int{begin, 448}, [2]int{end + 90, 448})
		c.text("small light", "start", 20, 452, "time")
		c.text("small light", "start", 20, 482, "Closing the connection ends every transfer: after Close returns, no memory is the device's.")
	},
}
