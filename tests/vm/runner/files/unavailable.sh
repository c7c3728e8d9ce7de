#!/bin/sh
# Part of the test harness: reads the headers of a request, and responds like a load balancer without an API server
# behind it.
while IFS= read -r line && [ "$line" != "$(printf '\r')" ]; do :; done
body='<html><body><h1>503 Service Unavailable</h1></body></html>'
printf 'HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/html\r\nContent-Length: %s\r\nConnection: close\r\n\r\n%s' \
    "${#body}" "$body"
