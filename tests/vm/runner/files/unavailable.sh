# Part of the test bed: reads the head of a request, and answers as a load balancer does that has no
# API server behind it.
while IFS= read -r line && [ "$line" != "$(printf '\r')" ]; do :; done
body='{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no server is available","reason":"ServiceUnavailable","code":503}'
printf 'HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: %s\r\nConnection: close\r\n\r\n%s' \
    "${#body}" "$body"
