// SPDX-License-Identifier: Apache-2.0

package main

var connection = drawing{
	name:  "connection",
	title: "The states of a connection",
	description: "A dialing end resolves the address and the route, creates the queue pair, calls Setup, and sends the request. " +
		"The accepting end has the request in its backlog, and Accept creates the queue pair, calls Setup, makes it ready and answers. Both are then up. " +
		"Either an error, the peer or Close ends the connection. Close releases everything at once, while the message of the end is repeated until the peer answers or Config.Linger is over.",
	width: 800, height: 600,
	draw: func(c *canvas) {
		const left, right, w = 20, 440, 340
		c.text("head", "middle", left+w/2, 36, "Dial")
		c.text("head", "middle", right+w/2, 36, "Listener.Accept, Request.Accept")
		c.box("go", rect{left, 52, w, 50}, "resolving", "the address, then the route: device, port, path")
		c.box("go", rect{left, 134, w, 50}, "queue pair in INIT", "Config.Setup: memory, first receives")
		c.box("go", rect{left, 216, w, 50}, "request sent", "with private data; waits for the answer")
		c.box("go", rect{right, 52, w, 50}, "request in the backlog", "if that is full, Dial tries again")
		c.box("go", rect{right, 134, w, 50}, "queue pair in INIT", "Config.Setup: memory, first receives")
		c.box("go", rect{right, 216, w, 50}, "queue pair in RTS, answer sent", "by way of RTR; waits for the dialing end")
		for _, y := range []int{102, 184} {
			c.arrow([2]int{left + 60, y}, [2]int{left + 60, y + 32})
			c.arrow([2]int{right + w - 60, y}, [2]int{right + w - 60, y + 32})
		}
		// The messages of the handshake.
		c.arrow([2]int{left + w, 228}, [2]int{400, 228}, [2]int{400, 77}, [2]int{right, 77})
		c.number(1, 400, 150)
		c.arrow([2]int{right, 252}, [2]int{left + w, 252})
		c.number(2, 400, 252)

		c.box("made", rect{120, 330, 560, 62}, "up: the queue pair is in RTS", "Send, Receive, Read, Write, Post;",
			"every Config.KeepAlive, an idle end checks that its peer is there")
		c.arrow([2]int{190, 266}, [2]int{190, 330})
		c.text("small light", "start", 202, 302, "RTR, RTS; tells the peer:")
		c.number(3, 370, 298)
		c.arrow([2]int{610, 266}, [2]int{610, 330})
		c.text("small light", "end", 598, 302, "when told:")
		c.number(3, 512, 298)

		c.box("device", rect{120, 440, 380, 62}, "ended: the queue pair is in ERR", "Done is closed, Err says why, requests are flushed;", "memory and messages that came are still there")
		c.box("plain", rect{120, 534, 560, 50}, "closed: nothing is in flight", "the peer is told, for Config.Linger at most; Shutdown waits for its answer")
		c.arrow([2]int{310, 392}, [2]int{310, 440})
		c.text("small light", "start", 322, 418, "the peer's end, an error, ETIMEDOUT, ENODEV")
		c.arrow([2]int{310, 502}, [2]int{310, 534})
		c.text("small light", "start", 322, 522, "Close")
		c.arrow([2]int{640, 392}, [2]int{640, 534})
		c.text("small light", "end", 630, 470, "Close, Shutdown")

		// Before a connection is up, a failure ends the call.
		c.text("small light", "start", 694, 350, "A failure before")
		c.text("small light", "start", 694, 366, "that is the error")
		c.text("small light", "start", 694, 382, "of the call.")
		c.text("small light", "start", 20, 350, "1 request")
		c.text("small light", "start", 20, 366, "2 answer")
		c.text("small light", "start", 20, 382, "3 ready to use")
	},
}
